"""Dense retrieval: encoders, vectors and FAISS indexes."""
