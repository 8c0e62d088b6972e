"""What the start of a vLLM engine needs: accepted versions, messages of its stages, a guard, owners of GPU memory."""
