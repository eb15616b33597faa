import { readFile } from 'node:fs/promises';
import { format, type FormatConfig } from 'oxfmt';

const settings = new URL('../../.oxfmtrc.json', import.meta.url);

/** A document as `npm run fix` leaves it; `file` is named in errors. */
export async function formatMarkdown(file: string, text: string): Promise<string> {
  const { ignorePatterns: _, ...config } = JSON.parse(await readFile(settings, 'utf8')) as FormatConfig & {
    ignorePatterns: readonly string[];
  };
  const { code, errors } = await format(file, text, config);
  if (errors.length > 0)
    throw new Error(`${file} could not be formatted: ${errors.map((one) => one.message).join('; ')}`);
  return code;
}
