/* Ends a test program at the first condition that does not hold. */
#include "folio.h"
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                   \
	do {                                                                               \
		if (!(condition)) {                                                        \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, \
				folio_last_error());                                       \
			exit(1);                                                           \
		}                                                                          \
	} while (0)
