/** An http or https URL without user and password; null for any other text. */
export function plainUrl(written: string): URL | null {
  const url = URL.canParse(written) ? new URL(written) : null;
  const isPlain = url !== null && /^https?:$/.test(url.protocol) && url.username === '' && url.password === '';
  return isPlain ? url : null;
}
