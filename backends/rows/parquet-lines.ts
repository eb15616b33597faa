import * as zlib from 'node:zlib';

/** Present since Node 22.15. */
const { zstdDecompressSync } = zlib as { readonly zstdDecompressSync?: (input: Uint8Array) => Uint8Array };

/** Compressions that hyparquet lacks. */
const compressors = {
  GZIP: (input: Uint8Array) => new Uint8Array(zlib.gunzipSync(input)),
  BROTLI: (input: Uint8Array) => new Uint8Array(zlib.brotliDecompressSync(input)),
  ...(zstdDecompressSync && { ZSTD: (input: Uint8Array) => new Uint8Array(zstdDecompressSync(input)) }),
};

/**
 * Rows of a Parquet file as lines of JSON. Integers beyond doubles become texts, as do dates. Throws for other files.
 */
export async function linesOfParquet(bytes: Uint8Array): Promise<string[]> {
  const { parquetReadObjects } = await import('hyparquet');
  const file = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength) as ArrayBuffer;
  const rows = await parquetReadObjects({ file, compressors });
  return rows.map((row) =>
    JSON.stringify(row, (_, value: unknown) => (typeof value === 'bigint' ? numberOr(value) : value)),
  );
}

function numberOr(value: bigint): number | string {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : String(value);
}
