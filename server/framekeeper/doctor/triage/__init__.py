"""Triage: one small job, again and again with one layer less, until it passes; that layer is at fault.

The route that people are told to follow by hand: caches, compile, quantisation, several processes, our own
worker, weights. Every step is a fresh process with a deadline.
"""
