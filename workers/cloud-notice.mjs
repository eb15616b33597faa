#!/usr/bin/env node
/**
 * Asks a cloud whether this machine is about to be taken away: exits with 0 and one line if it is, with 1 if not.
 *
 *     ratchet worker --role train --drain-hook 'node workers/cloud-notice.mjs aws'
 *
 * It asks the metadata service of the machine's host, and nothing else. Needs no package.
 */

const address = process.env.RATCHET_METADATA_URL;
/** A metadata service answers within milliseconds. */
const answerMs = 1_500;

/** @type {Readonly<Record<string, () => Promise<string | null>>>} */
const clouds = {
  /** A spot interruption comes two minutes before the end, a rebalance recommendation maybe sooner. */
  async aws() {
    const base = address ?? 'http://169.254.169.254';
    const headers = { 'x-aws-ec2-metadata-token-ttl-seconds': '60' };
    const token = await ask(`${base}/latest/api/token`, { method: 'PUT', headers });
    if (token === null) return null;
    const notice = await ask(`${base}/latest/meta-data/spot/instance-action`, {
      headers: { 'x-aws-ec2-metadata-token': token },
    });
    return notice && `AWS takes this spot instance away: ${notice}`;
  },
  /** Preemption comes 30 seconds before the end, maintenance of machines with GPUs an hour. */
  async gcp() {
    const base = address ?? 'http://metadata.google.internal';
    const headers = { 'metadata-flavor': 'Google' };
    const preempted = await ask(`${base}/computeMetadata/v1/instance/preempted`, { headers });
    if (preempted?.trim() === 'TRUE') return 'Google Cloud preempts this instance';
    const event = await ask(`${base}/computeMetadata/v1/instance/maintenance-event`, { headers });
    return event?.trim() === 'TERMINATE_ON_HOST_MAINTENANCE' ? 'Google Cloud ends this instance for maintenance' : null;
  },
  /** Scheduled events come 30 seconds (Preempt) to 15 minutes (Reboot, Redeploy, Terminate) before. */
  async azure() {
    const base = address ?? 'http://169.254.169.254';
    const text = await ask(`${base}/metadata/scheduledevents?api-version=2020-07-01`, {
      headers: { metadata: 'true' },
    });
    /** @type {{ Events?: { EventType?: string, EventStatus?: string, Description?: string }[] }} */
    const { Events = [] } = text === null ? {} : JSON.parse(text);
    const ending = Events.find(({ EventType = '' }) =>
      ['Preempt', 'Terminate', 'Redeploy', 'Reboot'].includes(EventType),
    );
    return ending ? `Azure announces ${ending.EventType} of this machine` : null;
  },
};

const cloud = clouds[process.argv[2] ?? ''];
if (cloud === undefined) {
  process.stderr.write(`expected one of ${Object.keys(clouds).join(', ')}, got ${process.argv[2] ?? 'nothing'}.\n`);
  process.exit(2);
}
try {
  const notice = await cloud();
  if (notice !== null) process.stdout.write(`${notice.replaceAll(/\s+/g, ' ')}\n`);
  process.exitCode = notice === null ? 1 : 0;
} catch (error) {
  process.stderr.write(`the metadata service was not understood: ${String(error)}\n`);
  process.exitCode = 3;
}

/**
 * The text of an answer; null for 404, which clouds answer where nothing is announced.
 *
 * @param {string} url
 * @param {RequestInit} options
 */
async function ask(url, options) {
  const answer = await fetch(url, { ...options, signal: AbortSignal.timeout(answerMs) });
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`${url} answered ${answer.status}`);
  return answer.text();
}
