/** A reporter for node's test runner that only prints the counts, as one line of JSON, at the end. */

/** @typedef {{ passed: number, failed: number, skipped: number }} TestCounts */

/**
 * @param {AsyncIterable<{ type: string, data: { nesting?: number, message?: string } }>} events
 * @returns {AsyncGenerator<string>}
 */
export default async function* countTests(events) {
  /** @type {Record<string, number>} */
  const totals = {};
  for await (const { type, data } of events) {
    // The runner ends with `pass 12`, `fail 0`, … on the outermost level; the last of each is the sum of all files.
    const total = type === 'test:diagnostic' && data.nesting === 0 ? /^(\w+) (\d+)$/.exec(data.message ?? '') : null;
    if (total) totals[total[1] ?? ''] = Number(total[2]);
  }
  /** @type {TestCounts} */
  const counts = {
    passed: totals['pass'] ?? 0,
    failed: (totals['fail'] ?? 0) + (totals['cancelled'] ?? 0),
    skipped: (totals['skipped'] ?? 0) + (totals['todo'] ?? 0),
  };
  yield JSON.stringify(counts);
}
