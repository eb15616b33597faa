import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { trainLogitsMax } from '../../engine/limits.ts';
import { parseModelConfig } from '../../engine/model/config.ts';
import { saveModelFolder } from '../../engine/model/model-folder.ts';
import { preset, randomParameters, temporaryFolder } from './models.ts';

const child = fileURLToPath(new URL('./large-vocabulary-child.ts', import.meta.url));
const vocabularySize = 151_936;
const rowTokens = 1024;

interface Told {
  readonly loss: number;
  readonly openedBytes: number;
  readonly trainedBytes: number;
}

test(`a row of ${rowTokens} tokens of a vocabulary of ${vocabularySize} is trained in bounded memory, to the same gradient`, async (t) => {
  const folder = await temporaryFolder(t);
  const small = preset();
  const own = { vocab_size: vocabularySize, hidden_size: 32, num_hidden_layers: 1, max_position_embeddings: 2048 };
  const text = JSON.stringify({ ...(JSON.parse(small.files['config.json'] ?? '') as object), ...own });
  const config = parseModelConfig(text, 'the large one');
  const parameters = randomParameters(config, 1);
  await saveModelFolder({ parameters, files: { ...small.files, 'config.json': text } }, folder);

  const train = async (name: string, ...limit: string[]): Promise<Told & { gradient: Float32Array }> => {
    const file = join(folder, name);
    const { stdout } = await promisify(execFile)(process.execPath, ['--import', 'tsx', child, folder, file, ...limit]);
    const { buffer, byteOffset, byteLength } = await readFile(file);
    return { ...(JSON.parse(stdout) as Told), gradient: new Float32Array(buffer, byteOffset, byteLength / 4) };
  };
  const inParts = await train('in-parts');
  const atOnce = await train('at-once', String(rowTokens * vocabularySize));

  const logitsBytes = 4 * rowTokens * vocabularySize;
  const [some, all] = [inParts, atOnce].map(({ openedBytes, trainedBytes }) => trainedBytes - openedBytes) as [
    number,
    number,
  ];
  t.diagnostic(
    `one copy of the logits ${mebibytes(logitsBytes)}; in parts ${mebibytes(some)}, at once ${mebibytes(all)}`,
  );
  assert.ok(some < 8 * 4 * trainLogitsMax, 'in parts: a few copies of what is computed at once');
  assert.ok(some < all - logitsBytes, 'at once: every copy is whole');

  assert.ok(Math.abs(inParts.loss - atOnce.loss) < 1e-5);
  for (const { name, offset, length } of parameters.layout) {
    const [parts, whole] = [inParts, atOnce].map(({ gradient }) => gradient.subarray(offset, offset + length)) as [
      Float32Array,
      Float32Array,
    ];
    const largest = whole.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    assert.ok(largest > 0, name);
    assert.ok(
      parts.every((value, i) => Math.abs(value - whole[i]!) <= 1e-5 * largest),
      name,
    );
  }
});

function mebibytes(bytes: number): string {
  return `${Math.round(bytes / 2 ** 20)} MiB`;
}
