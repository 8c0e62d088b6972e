"""Generated long documents about invented subjects, with questions that need three facts of three documents.

The documents and questions are templated text: results on them compare methods; they are not evidence about real
research.
"""
