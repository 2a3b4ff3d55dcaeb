"""Tables, provenance, saving and resuming; knows no model."""

from identilens.results.dyck import DyckRuns as DyckRuns
from identilens.results.encoder_run import EncoderRun as EncoderRun
from identilens.results.encoder_sweep import EncoderSweep as EncoderSweep
from identilens.results.provenance import provenance as provenance
from identilens.results.run_folder import RunFolder as RunFolder
from identilens.results.structure import Structure as Structure
from identilens.results.tokens import TokenIdentifiability as TokenIdentifiability
