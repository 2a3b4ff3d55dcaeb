"""Figures and self-contained HTML made from results; knows no model."""

from identilens.report.dyck_figures import save_dyck_figures as save_dyck_figures
from identilens.report.dyck_report import write_dyck_report as write_dyck_report
from identilens.report.results import save_figures as save_figures
from identilens.report.results import write_report as write_report
from identilens.report.structure_figures import save_structure_figures as save_structure_figures
from identilens.report.structure_report import write_structure_report as write_structure_report
from identilens.report.tokens_figures import save_tokens_figures as save_tokens_figures
from identilens.report.tokens_report import write_tokens_report as write_tokens_report
