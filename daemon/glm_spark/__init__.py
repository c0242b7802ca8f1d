"""Serves GLM-5.3-Flash from two or three DGX Sparks as one OpenAI-compatible endpoint."""

__version__ = "0.1.0"
