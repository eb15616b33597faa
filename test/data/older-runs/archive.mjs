/** Packs recorded runs into one file, since most of their content is the same: `NAME/words/…`. The same folders give the same bytes. */
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { brotliCompressSync, brotliDecompressSync, constants } from 'node:zlib';

const file = fileURLToPath(new URL('older-runs.tar.br', import.meta.url));

/**
 * Unpacks all recorded runs, or one of them, below a folder.
 * @param {string} folder
 * @param {string} [name]
 */
export function unpack(folder, name) {
  const tar = brotliDecompressSync(readFileSync(file));
  const only = name === undefined ? [] : ['--strip-components=1', name];
  execFileSync('tar', ['-xf', '-', '-C', folder, ...only], { input: tar });
}

/** @param {string} folder With a folder for each recorded run. */
export function pack(folder) {
  const order = ['--sort=name', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner', '--mode=u=rwX,go=rX'];
  const tar = execFileSync('tar', [...order, '-cf', '-', '-C', folder, '--transform=s,^\\./,,', '.'], { maxBuffer: 2 ** 28 });
  const { BROTLI_PARAM_QUALITY: quality, BROTLI_PARAM_LGWIN: window, BROTLI_PARAM_SIZE_HINT: size } = constants;
  writeFileSync(file, brotliCompressSync(tar, { params: { [quality]: 11, [window]: 24, [size]: tar.length } }));
}
