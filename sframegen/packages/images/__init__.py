"""A container image -> the same image with one more layer, which has the changed files.

An image is an OCI layout (a directory, or one archive of it) or an archive of `docker save`. The layers are read, and nothing is
unpacked: which files a container of the image would see follows from the names in the layers alone.
"""
