"""Requests about whole texts: embeddings, rerankings, scores, in the shapes of several APIs."""
