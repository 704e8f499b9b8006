"""Monitoring: what a model does at a new place, before anyone has labelled its data."""
