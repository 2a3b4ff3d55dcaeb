"""Identifiable transformer encoders (Bhardwaj et al. 2021): models, data, training.

Names are loaded when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
