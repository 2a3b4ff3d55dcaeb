"""Bounded Dyck languages (Wen et al. 2023): models, training, constructions, pruning, measures of attention.

Names are loaded when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
