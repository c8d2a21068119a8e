"""Models and their data, in one registry: vision, language, recommendation.

base.py          what all have: data, model, loss, optimizer, metric, schedule
classify.py      classes, and the next or a masked byte; models.py and data.py have the parts
vision.py  language.py  recommend.py
registry.py      all of them by name
reproducible.py  seeds
shapes.py        published models by the shapes of their tensors; trace.py exchanges recorded gradients of them
recorded.py      their format; record_trace.py writes them, of what published.py and pretrain.py train
density.py       how many values of gradients are not zero

Nothing is downloaded: images come with scikit-learn (or Debian), text with Python, ratings with recbole.
"""

from sumwire.lab.workloads.base import Data, Workload
from sumwire.lab.workloads.registry import DENSE, SPARSE, TARGETS, TRACES, TRAINED, WORKLOADS, find

__all__ = ["DENSE", "SPARSE", "TARGETS", "TRACES", "TRAINED", "WORKLOADS", "Data", "Workload", "find"]
