/** A run's budget in the hands of rollout workers, one after the other and at once. */
import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';
import { setBudget } from '../../runs/budgets/set-budget.ts';
import { BudgetLedger } from '../../runs/budgets/budget-ledger.ts';
import { createEnvironments, openEnvironment, type Environments } from '../../backends/environments/index.ts';
import { multiTurn } from '../../backends/environments/kit.ts';
import { initialCurriculum } from '../../core/rl/sampling/curriculum.ts';
import { act, commitFirst, datasets, makeRun, openRoles, scoredRollouts, WordsInference } from './runs.ts';

/** Three turns: the policy is asked again with what it said. */
function threeTurns(): Environments {
  return createEnvironments(async () => {
    const { dataset, evalDataset, rubric } = await openEnvironment({ id: 'reverse-text', args: {} });
    const respond = () => ({ state: null, say: 'ab' });
    return multiTurn<null>({ name: 'three', dataset, evalDataset, rubric, maxTurns: 3, setup: () => null, respond });
  });
}

async function leased(t: TestContext, settings: Record<string, string>, environments = threeTurns()) {
  const run = await makeRun(t, settings);
  const inference = new WordsInference();
  const roles = openRoles(inference, { environments });
  const { state } = await commitFirst(run, roles);
  const lease = { run: run.run, step: 1, count: 2, curriculum: initialCurriculum, datasets, policy: state.policy };
  const { round } = await roles.leaseGroups(lease);
  const input = { run: run.run, round, chunk: { index: 0, count: 1 } };
  const ledger = async () => (await new BudgetLedger(run.store, '').newest())!;
  return { ...run, inference, roles, input, ledger, environments };
}

/** Tokens that the server was given and gave. */
function tokensOf({
  asked,
  given,
}: {
  asked: readonly { promptTokenIds: readonly number[] }[];
  given: number;
}): number {
  return asked.reduce((sum, { promptTokenIds }) => sum + promptTokenIds.length, given);
}

function counting(inference: WordsInference): { given: number } {
  const counted = { given: 0 };
  inference.sample = async (request) => {
    const said = await WordsInference.prototype.sample.call(inference, request);
    const [tokenIds, logprobs] = [said.tokenIds, said.logprobs].map((all) => all.slice(0, request.maxTokens));
    const sample = { ...said, tokenIds: tokenIds!, logprobs: logprobs! };
    counted.given += sample.tokenIds.length;
    return sample;
  };
  return counted;
}

describe('the budget of a run', () => {
  test('ends an attempt where it is used up, never beyond it, and a larger one finishes the same rollouts', async (t) => {
    const { run, roles, input, inference, ledger } = await leased(t, { 'budget.tokens': '150' });
    const counted = counting(inference);
    const first = await act(roles.playGroups, { ...input, attempt: 1 });
    assert.equal(first.endedBy, 'budget');
    assert.match(
      first.overBudget ?? '',
      /^The run's budget of 150 tokens is used up: .* npx ratchet-rl set words budget.tokens=NEW/,
    );
    const used = tokensOf({ asked: inference.asked, given: counted.given });
    assert.ok(used <= 150 && used > 100, `${used} of 150 tokens`);
    const state = await ledger();
    assert.deepEqual([state.used.tokens, state.held.tokens], [used, 0]);

    await setBudget({ run, limits: { tokens: 100_000 } });
    const second = await act(roles.playGroups, { ...input, attempt: 2 });
    assert.deepEqual([second.unfinished, second.rollouts], [undefined, 8]);
    const other = await leased(t, {});
    const undisturbed = await scoredRollouts(other.run, await act(other.roles.playGroups, other.input));
    assert.deepEqual(await scoredRollouts(run, second), undisturbed, 'the same random numbers');
  });

  test('counts money at the prices of the file', async (t) => {
    const prices = { 'cost.prompt': '1', 'cost.completion': '10' };
    const { roles, input, inference, ledger } = await leased(t, { ...prices, 'budget.money': '0.0007' });
    const counted = counting(inference);
    const first = await act(roles.playGroups, { ...input, attempt: 1 });
    assert.match(first.overBudget ?? '', /^The run's budget of 0.0007 USD is used up/);
    const prompts = tokensOf({ asked: inference.asked, given: 0 });
    const money = (prompts + counted.given * 10) / 1e6;
    assert.ok(money <= 0.0007 && money > 0.0004, `${money}`);
    assert.equal((await ledger()).used.money, Math.round(money * 1e9));
  });

  test('is over at its wall time, also in the middle of calls', async (t) => {
    const { roles, input, inference } = await leased(t, { 'budget.wall_seconds': '1' });
    inference.sample = ({ signal }) =>
      new Promise((_, reject) => signal!.addEventListener('abort', () => reject(signal!.reason as Error)));
    const first = await act(roles.playGroups, { ...input, attempt: 1 });
    assert.equal(first.endedBy, 'budget');
    assert.match(first.overBudget ?? '', /^The run's budget of 1 seconds of wall time is over/);
  });
});

describe('the budget of a rollout', () => {
  test('truncates it, by name, with the turns that it has', async (t) => {
    const { run, roles, input, inference } = await leased(t, { 'env.0.budget.tokens': '22' });
    const counted = counting(inference);
    const played = await act(roles.playGroups, input);
    const rollouts = await scoredRollouts(run, played);
    assert.equal(rollouts.length, 8);
    for (const { turns, outcome, overBudget } of rollouts) {
      const tokens = turns.reduce(
        (sum, { promptTokenIds, tokenIds }) => sum + promptTokenIds.length + tokenIds.length,
        0,
      );
      assert.ok(tokens <= 22, `${tokens}`);
      assert.deepEqual([outcome, overBudget], ['truncated', 'tokens']);
    }
    assert.ok(counted.given > 0);
  });
});
