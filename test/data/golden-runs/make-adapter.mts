/** The adapters that a run of `hosted.toml` begins with, for the recording: `node --import tsx test/data/golden-runs/make-adapter.mts` */
import { cpSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseRunConfig } from '../../../config/parse-run-config.ts';
import { EngineOptimizer, presetFiles } from '../../../engine/index.ts';

const here = fileURLToPath(new URL('.', import.meta.url));
const parsed = parseRunConfig(readFileSync(path.join(here, 'hosted.toml'), 'utf8'), { file: 'hosted.toml' });
if (!parsed.ok) throw new Error('hosted.toml does not load');
const model = mkdtempSync(path.join(tmpdir(), 'adapter-'));
cpSync(path.join(here, 'tiny'), model, { recursive: true });
for (const name of ['tokenizer.json', 'tokenizer_config.json'])
  writeFileSync(path.join(model, name), presetFiles('preset:reverse-text-0.2m')[name]!);
const { lora, seed } = parsed.spec;
const trainer = await EngineOptimizer.open(model, { threads: 1, seed, lora });
await trainer.exportWeights(path.join(here, 'adapter'), { base: '../tiny' });
await trainer.close();
