import assert from 'node:assert/strict';
import { test } from 'node:test';
import { encodeJson } from '../../store/objects.ts';
import { lineageRecordIn } from '../../runs/forms/record-shapes.ts';
import { specSourceIn } from '../../runs/forms/spec-source.ts';

const source = {
  config: '/home/me/run.toml',
  over: [{ file: '/home/me/more.toml' }],
  overrides: { max_steps: '3' },
  attempt: 1,
};

test('where a spec was read from is read whole, or said to be damaged', () => {
  assert.deepEqual(specSourceIn(encodeJson(source), 'specs/a.source.json'), source);
  const damages = [
    {},
    { ...source, config: null },
    { ...source, over: [{}] },
    { ...source, overrides: { a: 1 } },
    { ...source, attempt: '1' },
    [],
  ];
  for (const damage of damages) {
    assert.throws(() => specSourceIn(encodeJson(damage), 'specs/a.source.json'), /specs\/a\.source\.json: expected/);
  }
});

test('a lineage that has another name than its file is damaged: nothing would be found under it', () => {
  const record = {
    schemaVersion: 1,
    lineage: 'l2',
    origin: { run: 'words', lineage: 'main', step: 4, sha256: 'a'.repeat(64) },
    request: 'words/1',
    begunAt: '2026-01-01T00:00:00.000Z',
  };
  assert.equal(lineageRecordIn(encodeJson(record), 'origins/lineage_2.json').lineage, 'l2');
  for (const lineage of ['m2', 'l3', 'l', 'main']) {
    const damaged = encodeJson({ ...record, lineage });
    assert.throws(() => lineageRecordIn(damaged, 'origins/lineage_2.json'), /lineage_2\.json: .*the lineage l2/);
  }
});
