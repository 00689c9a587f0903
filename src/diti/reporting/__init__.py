"""Analyses, tables and figures of finished models: everything here reads models and writes folders to look at."""
