// libnccl.so.2 and librccl.so have nothing of their own: collective.c, in the driver's library, has their calls.
typedef int empty;
