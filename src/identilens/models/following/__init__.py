"""Attention that a model computes by itself: found in a forward pass, and turned into calls of the interface."""

from identilens.models.following.routes import Route as Route
from identilens.models.following.routes import capturing as capturing
from identilens.models.following.watching import Candidate as Candidate
from identilens.models.following.watching import LayerRun as LayerRun
from identilens.models.following.watching import Meeting as Meeting
from identilens.models.following.watching import Slot as Slot
from identilens.models.following.watching import is_attention as is_attention
from identilens.models.following.watching import routes_among as routes_among
from identilens.models.following.watching import watched as watched
