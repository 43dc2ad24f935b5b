"""Quire under Hugging Face transformers."""
