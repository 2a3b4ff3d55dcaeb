"""Loading models and capturing their internals; only this package imports the model internals of transformers."""

from identilens.models.bundled import bundled_model as bundled_model
from identilens.models.capture import CapturedText as CapturedText
from identilens.models.heads import CapturedLayer as CapturedLayer
from identilens.models.heads import Head as Head
from identilens.models.lens import Lens as Lens
from identilens.models.loading import load as load
from identilens.models.substitution import ModelRun as ModelRun
from identilens.models.substitution import Rows as Rows
