#include <gmp.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
	mpz_t a, b, c, d;
	gmp_randstate_t state;
	int rounds = atoi(argv[1]);
	gmp_randinit_default(state);
	mpz_inits(a, b, c, d, NULL);
	for (int round = 0; round < rounds; round++) {
		unsigned bits = 200 + (round * 7919) % 40000;
		mpz_urandomb(a, state, bits);
		mpz_urandomb(b, state, bits / 2 + 3);
		mpz_setbit(b, 0);
		mpz_mul(c, a, b);
		mpz_tdiv_qr(c, d, c, b);
		mpz_gcd(c, a, b);
		mpz_mul(d, a, a);
		mpz_sqrt(d, d);
		if (bits < 3000)
			mpz_powm(c, a, b, d);
	}
	return mpz_sgn(d) < 0;
}
