"""identilens: how much of attention and hidden states is determined by what a transformer computes.

Names are loaded when they are first used; ``__init__.pyi`` says where each stands.
"""

from importlib.metadata import version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = version("identilens")
