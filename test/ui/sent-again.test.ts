/** Changes sent for an answer that grew: the page rebuilds exactly that answer from few bytes. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { layout } from '../../runs/layout.ts';
import { answerHeaders, type RunOverview, type SeriesAnswer } from '../../ui/answers.ts';
import { type Change, changeBetween, changed } from '../../core/change-between.ts';
import { GrownAnswers } from '../../ui/page/grown-answers.ts';
import { servePage } from '../../ui/serve.ts';
import { tokenOf } from './page-token.ts';
import { commitFirst, makeRun, openRoles } from '../activities/runs.ts';

const sent = (change: Change | null): Change | null => JSON.parse(JSON.stringify(change)) as Change | null;
/** Values after a pass through JSON, which has no −0. */
const json = fc.jsonValue({ maxDepth: 4 }).map((value) => JSON.parse(JSON.stringify(value)) as unknown);
/** Near one another, as two answers to one question are. */
const grown = fc.array(fc.oneof(json, fc.constantFrom(0, null, 1)), { maxLength: 30 }).chain((list) =>
  fc
    .record({
      before: fc.subarray(list),
      after: fc.subarray(list),
      more: fc.array(json, { maxLength: 3 }),
      beside: json,
    })
    .map(({ before, after, more, beside }) => ({
      before: { list: before, deep: { list, beside } } as unknown,
      after: { list: [...after, ...more], deep: { list: [...list, ...more], beside } } as unknown,
    })),
);

test('an answer made of the one before and what is new is the answer', () => {
  const same = ({ before, after }: { readonly before: unknown; readonly after: unknown }): void =>
    assert.deepEqual(changed(before, sent(changeBetween(before, after))), after);
  fc.assert(fc.property(fc.record({ before: json, after: json }), same), { numRuns: 500 });
  fc.assert(fc.property(grown, same), { numRuns: 500 });
  same({ before: JSON.parse('{"__proto__": 1, "a": 2}'), after: JSON.parse('{"__proto__": {"b": 3}, "a": 2}') });
  fc.assert(fc.property(json, (value) => changeBetween(value, JSON.parse(JSON.stringify(value))) === null));
});

test('a list that slides, and one whose middle changes, are sent by what is new of them', () => {
  const marks = Array.from({ length: 500 }, (_, step) => ({ kind: 'weights', step, text: `servers have v${step}` }));
  const slid = [...marks.slice(0, 3), ...marks.slice(4), { kind: 'weights', step: 500, text: 'servers have v500' }];
  assert(JSON.stringify(changeBetween(marks, slid)).length < 120);
  const curve = Array.from({ length: 1_000 }, (_, i) => i / 7);
  assert(JSON.stringify(changeBetween(curve, curve.with(500, -1))).length < 40);
  assert(JSON.stringify(changeBetween(curve, [...curve, 3])).length < 40);
});

const steps = 400;
const metrics = Array.from({ length: 40 }, (_, i) => `other/metric_${i}`);
const rowOf = (step: number): string =>
  `${JSON.stringify({
    step,
    lineage: 'main',
    time: new Date(Date.UTC(2026, 0, 1, 0, 0, step)).toISOString(),
    ...Object.fromEntries(metrics.map((name, i) => [name, Math.sin(step * (i + 1))])),
  })}\n`;

test('a viewer of a long run is sent less than a twentieth of it again when a step is committed', async (t) => {
  const { run, store, spec } = await makeRun(t, {}, 'long');
  await store.put(layout.run(), Buffer.from(JSON.stringify({ schemaVersion: 1, name: 'long', spec })));
  await commitFirst({ run, store, spec, folder: '' }, openRoles());
  await store.append(layout.metrics(), Array.from({ length: steps }, (_, step) => rowOf(step + 1)).join(''));
  const page = await servePage({ store: run.store, run: 'long', port: 0, ask: () => Promise.resolve(null) });
  t.after(() => page.close());
  const { origin } = new URL(page.url);
  const authorization = `Bearer ${tokenOf(page.url)}`;
  const path = `/api/runs/long/series?${metrics.map((name) => `name=${name}`).join('&')}`;
  /** Asks like the page; also returns the number of bytes of the unpacked body. */
  const asker = () => {
    const answers = new GrownAnswers();
    return async (): Promise<{ series: SeriesAnswer; bytes: number }> => {
      const { headers, take } = answers.ask(path);
      const response = await fetch(origin + path, { headers: { authorization, ...headers } });
      const body = await response.text();
      return { series: take(response.headers, JSON.parse(body)) as SeriesAnswer, bytes: body.length };
    };
  };
  const looking = await fetch(`${origin}/api/runs/long/live`, { headers: { authorization } });
  const reader = looking.body!.pipeThrough(new TextDecoderStream()).getReader();
  let heard = '';
  let news: unknown = null;
  const nextNews = async (): Promise<{ bytes: number; overview: RunOverview }> => {
    for (;;) {
      const found = /event: (run|change)\ndata: (.*)\n\n/.exec(heard);
      if (!found) heard += (await reader.read()).value ?? '';
      else {
        heard = heard.slice(found.index + found[0].length);
        const told: unknown = JSON.parse(found[2]!);
        news = found[1] === 'run' ? told : changed(news, told as Change);
        return { bytes: found[2]!.length, overview: (news as { overview: RunOverview }).overview };
      }
    }
  };
  const [one, other] = [asker(), asker()];
  const whole = await one();
  assert.equal(whole.series.path.step.length, steps);
  await other();
  const begun = await nextNews();
  for (const step of [steps + 1, steps + 2]) {
    await store.append(layout.metrics(), rowOf(step));
    const told = await nextNews();
    assert(told.bytes < begun.bytes / 4, `${told.bytes} of ${begun.bytes} bytes of where it stands`);
    const plain = (await (await fetch(origin + path, { headers: { authorization } })).json()) as SeriesAnswer;
    for (const ask of [one, other]) {
      const { series, bytes } = await ask();
      assert.deepEqual(series, plain);
      assert(bytes < whole.bytes / 20, `${bytes} of ${whole.bytes} bytes`);
    }
  }
  // One that was away for long, and whose answer is not held any more, is sent all of it.
  const late = new GrownAnswers();
  late.ask(path).take(new Headers({ [answerHeaders.name]: 'long ago' }), { other: true });
  const { headers, take } = late.ask(path);
  const response = await fetch(origin + path, { headers: { authorization, ...headers } });
  assert.equal((take(response.headers, await response.json()) as SeriesAnswer).path.step.length, steps + 2);
  await reader.cancel();
});
