"""The experiments of "Distributed Mean Estimation with Limited Communication" (Suresh et al. 2017), with all schemes.

estimation.py    error of the mean over bits (`sumwire lab dme`)
clustering.py    k-means over clients that send compressed sums (`sumwire lab kmeans`)
components.py    PCA over clients that send compressed products (`sumwire lab pca`)
"""
