"""Bytes and sockets on one side, the service on the other; faces never see each other."""
