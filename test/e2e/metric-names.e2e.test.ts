/** docs/metrics.md against a real run: what is written has a definition, and what has one is written. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { definitionOf, metricSections } from '../../core/rl/metric-names.ts';
import { openSmallProject, repositoryFolder, smallRun, type SmallProject } from './small-run.ts';

let project: SmallProject;
before(async () => void (project = await openSmallProject({ 'words.toml': smallRun })));
after(() => project.close());

test('a run writes no metric without a definition, and every defined one unless it says when', async () => {
  await promisify(execFile)(
    process.execPath,
    [path.join(repositoryFolder, 'cli/ratchet.mjs'), 'train', 'words.toml', '--plain', '--max-steps', '2'],
    { cwd: project.folder, env: { ...process.env, TEMPORAL_ADDRESS: project.stack.temporalAddress } },
  );
  const rows = (await readFile(path.join(project.folder, 'outputs/words/metrics.jsonl'), 'utf8'))
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
  const ofRow = new Set(['step', 'lineage', 'time']);
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) => !ofRow.has(name));
  const environments = ['reverse-text'];
  assert.deepEqual(
    names.filter((name) => definitionOf(name, environments) === undefined),
    [],
    'metrics that core/rl/metric-names.ts does not define',
  );
  const written = new Set(names.map((name) => definitionOf(name, environments)?.name));
  const missing = metricSections
    .flatMap(({ metrics }) => metrics)
    .filter(({ name, when }) => when === undefined && !written.has(name));
  assert.deepEqual(
    missing.map(({ name }) => name),
    [],
    'metrics that are defined without saying when, and that the run did not write',
  );
});
