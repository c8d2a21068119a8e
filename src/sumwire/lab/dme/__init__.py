"""The experiments of "Distributed Mean Estimation with Limited Communication" (Suresh et al. 2017), with all schemes.

estimation.py    the error of a mean against bits (`sumwire lab dme`)
clustering.py    k-means over clients that send compressed sums (`sumwire lab kmeans`)
components.py    the same for principal components (`sumwire lab pca`)
"""
