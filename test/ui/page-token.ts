/** Returns the token from a page's address, where it follows the `#`. */
export function tokenOf(url: string): string {
  const token = new URLSearchParams(new URL(url).hash.slice(1)).get('token');
  if (token !== null) return token;
  throw new Error(`expected an address with a token, got ${url}`);
}
