"""Dense retrieval, with encoders, vectors and FAISS indexes."""
