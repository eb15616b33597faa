/** A rollout worker that was killed is started again: what it loads before it asks for work is what its start costs. */
import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const root = fileURLToPath(new URL('../../', import.meta.url));

/** Sources of ours that others need: trainers, orchestrators, commands. */
const sourcesOfOthers = [
  'activities/of-gpu-worker.ts',
  'activities/of-orchestrator.ts',
  'load/',
  'backends/trainer/',
  'config/dialects/',
  'config/parse-run-config.ts',
  'engine/index.ts',
  'engine/gguf/',
  'engine/onnx/graph.ts',
  'engine/sample/',
  'engine/train/loss.ts',
  'engine/train/optimizer.ts',
  'engine/server/policy-server.ts',
  'workers/metrics/metrics-role.ts',
  'workers/roles/orchestrator-worker.ts',
  'workers/stack/take-over.ts',
  'workers/roles/trainer-workers.ts',
];

/** Packages that come when a run needs them: a store in S3, tables, the embedded engine, files of the user's in TypeScript. */
const packagesOfOthers = [
  '@aws-sdk/client-s3',
  '@temporalio/workflow',
  '@commander-js/extra-typings',
  'commander',
  'diff',
  'esbuild',
  'hyparquet-writer',
  'minisearch',
  'onnxruntime-node',
  'openai',
  'tsx/cjs/api',
  'tsx/esm/api',
];

describe('a rollout worker, until it asks for work,', () => {
  let loaded: Loaded;
  before(async () => {
    loaded = await loadedBy(['workers/main.ts', 'workers/roles/worker-process.ts', 'workers/roles/rollout-worker.ts']);
  });

  test('loads no source that only other roles need', () => {
    for (const needed of ['workers/roles/worker.ts', 'activities/play-groups.ts', 'play/chunk-play.ts'])
      assert.ok(loaded.sources.includes(needed), needed);
    assert.deepEqual(
      loaded.sources.filter((file) => sourcesOfOthers.some((other) => file.startsWith(other))),
      [],
    );
  });

  test('loads no package that it may not come to need', () => {
    assert.ok(loaded.packages.includes('@temporalio/worker'));
    assert.deepEqual(
      loaded.packages.filter((name) => packagesOfOthers.includes(name)),
      [],
    );
  });
});

interface Loaded {
  readonly sources: readonly string[];
  readonly packages: readonly string[];
}

/** Modules that Node loads before running these files: all static imports, transitively. */
async function loadedBy(files: readonly string[]): Promise<Loaded> {
  const { metafile } = await build({
    absWorkingDir: root,
    entryPoints: [...files],
    bundle: true,
    write: false,
    metafile: true,
    splitting: true,
    outdir: 'nowhere',
    format: 'esm',
    platform: 'node',
    packages: 'external',
    logLevel: 'silent',
  });
  const sources = new Set(files);
  const packages = new Set<string>();
  for (const file of sources) {
    for (const { path, kind, external } of metafile.inputs[file]!.imports) {
      if (kind !== 'import-statement') continue;
      if (external) packages.add(path);
      else sources.add(path);
    }
  }
  return { sources: [...sources], packages: [...packages] };
}
