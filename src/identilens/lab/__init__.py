"""The laboratory: what the papers teach on models of their own, with studies that train and measure these models.

Names are loaded when they are first used. The rest of identilens imports nothing of it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
