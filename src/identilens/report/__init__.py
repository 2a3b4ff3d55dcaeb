"""Figures and self-contained HTML made from results; knows no model."""

from identilens.report.audit_figures import save_audit_figures as save_audit_figures
from identilens.report.audit_report import write_audit_report as write_audit_report
from identilens.report.results import save_figures as save_figures
from identilens.report.results import write_report as write_report
