"""Tables, provenance, saving and resuming; knows no model."""

from identilens.results.dyck import DyckRuns as DyckRuns
from identilens.results.provenance import provenance as provenance
from identilens.results.run_folder import RunFolder as RunFolder
from identilens.results.tokens import TokenIdentifiability as TokenIdentifiability
