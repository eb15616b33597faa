import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BudgetLedger } from '../../runs/budgets/budget-ledger.ts';
import { storeOf } from '../../runs/run-access.ts';
import { unlimited } from '../../core/settings/budgets.ts';
import { evaluateAll, evaluationFolder, inputFor, openEvaluation, serve } from './evaluation-runs.ts';

test('an evaluation stops where its budget is used up, and one that is resumed with more goes on from there', async (t) => {
  const [folder, server] = [await evaluationFolder(t), await serve(t)];
  const prices = { input: 1, output: 10 };
  const whole = inputFor(folder, server, { prices });
  // The server counts the tokens itself: a request reserves as many as its bytes.
  const budget = { ...unlimited, money: 0.0012 };
  await assert.rejects(evaluateAll({ ...whole, budget }), (error: Error) => {
    assert.equal(error.name, 'BudgetReached');
    assert.match(error.message, /The evaluation's budget of 0.0012 of money is used up: .* larger money of its budget/);
    return true;
  });
  const before = server.answered.length;
  assert.ok(before > 0 && before < 18, `${before} answers`);
  const ledger = new BudgetLedger(storeOf(whole.results), whole.results.prefix);
  const { used, held } = (await ledger.newest())!;
  assert.ok(used.money > 0 && used.money <= 0.0012e9);
  assert.equal(held.money, 0);

  const { result } = await evaluateAll({ ...whole, budget: { ...unlimited, money: 1 } }, 'w/2');
  assert.deepEqual([result.rollouts, result.failed, server.answered.length], [18, 0, 18], 'nothing is sampled twice');
  assert.ok((await ledger.newest())!.used.money > used.money, 'what the first attempt used stays used');
});

test('an evaluation whose money is limited is refused where the price of its model is not known', async (t) => {
  const [folder, server] = [await evaluationFolder(t), await serve(t)];
  const input = inputFor(folder, server, { budget: { ...unlimited, money: 1 } });
  await assert.rejects(
    openEvaluation(input),
    /budget.money: what mock costs is not known, so money cannot be limited. Write prices = /,
  );
});
