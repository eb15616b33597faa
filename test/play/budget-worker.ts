/** A worker of budget-kills.test.ts: makes calls within a shared budget until it is refused, and notes what the server gave. */
import { appendFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { countsOf } from '../../core/rl/budget.ts';
import { unlimited } from '../../core/settings/budgets.ts';
import { SharedBudget } from '../../play/budget/shared-budget.ts';
import { BudgetLedger } from '../../runs/budgets/budget-ledger.ts';
import { storeOf } from '../../runs/run-access.ts';

const [store = '', limit = '', given = ''] = process.argv.slice(2);
const budget = new SharedBudget({
  ledger: new BudgetLedger(storeOf({ store, name: 'words' }), ''),
  of: 'run',
  limits: { ...unlimited, tokens: Number(limit) },
  advice: () => '',
  times: { lookMs: 50, answerMs: 1_000 },
});
const leave = await budget.enter();
let isOver = false;

async function call(): Promise<void> {
  for (let i = 0; !isOver; i++) {
    const answer = await budget.reserve(countsOf({ tokens: 20 }));
    if ('over' in answer) {
      isOver = true;
      return;
    }
    await delay(3);
    const tokens = 5 + (i % 16);
    appendFileSync(given, `${tokens}\n`); // the server has sampled them, whatever becomes of the worker
    await delay(1);
    answer.settle(countsOf({ tokens }));
  }
}

await Promise.all(Array.from({ length: 8 }, call));
await leave();
process.stdout.write('over\n');
