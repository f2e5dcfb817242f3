"""Rewrites of what XNNPACK computes by operators of another name, so that it splits no delegate."""
