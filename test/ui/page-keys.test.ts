/** A page that several people use: each key is of somebody, who may do what their role says. */
import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import type { Person } from '../../core/roles.ts';
import type { Steering } from '../../ui/answers.ts';
import { servePage } from '../../ui/serve.ts';
import { tokenOf } from './page-token.ts';
import { recordedRun } from './recorded-run.ts';

const ann: Person = { name: 'ann', role: 'operator', team: null };
const vic: Person = { name: 'vic', role: 'viewer', team: null };

async function opened(t: TestContext) {
  const { run } = await recordedRun(t);
  const keys = new Map([
    ['key of ann', ann],
    ['key of vic', vic],
  ]);
  const steered: { readonly what: Steering['what']; readonly as: string | null }[] = [];
  const page = await servePage({
    store: run.store,
    run: null,
    port: 0,
    ask: () => Promise.resolve(null),
    guestOf: (key) => {
      const person = keys.get(key);
      return Promise.resolve(person ? { person, maySteer: person.role !== 'viewer' } : null);
    },
    steer: (_, { what }, as) => {
      steered.push({ what, as: as?.name ?? null });
      return Promise.resolve('done');
    },
  });
  t.after(() => page.close());
  const { origin } = new URL(page.url);
  const headersOf = (key: string) => ({ authorization: `Bearer ${key}`, origin });
  return {
    keys,
    steered,
    printed: tokenOf(page.url),
    canSteer: async (key: string) => {
      const answer = await fetch(`${origin}/api/settings`, { headers: headersOf(key) });
      return answer.status === 200 ? ((await answer.json()) as { canSteer: boolean }).canSteer : answer.status;
    },
    post: async (key: string) => {
      const body = JSON.stringify({ what: 'pause', value: 'lunch', as: 'ann', person: ann });
      const headers = { ...headersOf(key), 'content-type': 'application/json', 'x-user': 'ann' };
      const answer = await fetch(`${origin}/api/runs/recorded/steer`, { method: 'POST', headers, body });
      return `${answer.status}: ${(await answer.text()).trim()}`;
    },
  };
}

test('the page asks for whoever has the key, a viewer only looks, and a key of nobody opens nothing', async (t) => {
  const { keys, steered, printed, canSteer, post } = await opened(t);
  assert.deepEqual(await Promise.all(['key of ann', 'key of vic', printed, 'key of'].map(canSteer)), [
    true,
    false,
    true,
    401,
  ]);
  assert.equal(await post('key of ann'), '200: {"message":"done"}');
  assert.equal(await post('key of vic'), '403: vic is a viewer, who may look.');
  assert.match(await post('key of nobody'), /^401: /);
  assert.match(await post('ann'), /^401: /);
  assert.equal(await post(printed), '200: {"message":"done"}');
  // What a request says of its sender beside the key counts for nothing.
  assert.deepEqual(steered, [
    { what: 'pause', as: 'ann' },
    { what: 'pause', as: null },
  ]);
  keys.delete('key of ann');
  assert.match(await post('key of ann'), /^401: /);
});
