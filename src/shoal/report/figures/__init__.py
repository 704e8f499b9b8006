"""Figures of the analyses: one visual style, made of plain numbers, readable in grey."""
