"""Payloads of delegates: engine blobs, AOTInductor libraries, and their requirements of a host."""
