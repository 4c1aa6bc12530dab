"""The only place that names what torch and CPython keep private: a row for each name, and a named refusal where a version has it no more."""
