/** The token in the address of a page, which stands behind its `#`. */
export function tokenOf(url: string): string {
  const token = new URLSearchParams(new URL(url).hash.slice(1)).get('token');
  if (token !== null) return token;
  throw new Error(`expected an address with a token, got ${url}`);
}
