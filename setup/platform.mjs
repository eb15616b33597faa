/** Which machines can run Ratchet. Decided before anything is downloaded, because a native library fails unreadably afterwards. */

/**
 * Facts about a machine.
 *
 * @typedef {object} MachineFacts
 * @property {string} platform As `process.platform`.
 * @property {string} arch As `process.arch`.
 * @property {string} node As `process.versions.node`.
 * @property {string | null} glibc Version of the C library on Linux; null where it is another (musl).
 */

/** onnxruntime-node needs it, Temporal's bridge too. */
const glibcOldest = '2.28';

/** Oldest minor version of each major one that the tests run on. */
const nodeVersions = new Map([
  [20, 19],
  [22, 0],
  [24, 0],
]);

/**
 * Why Ratchet cannot run on this machine, in one line, or null.
 * @param {MachineFacts} facts
 * @returns {string | null}
 */
export function refusePlatform({ platform, arch, node, glibc }) {
  if (platform === 'win32') return 'Ratchet does not run on Windows itself; use WSL2 (Ubuntu) and start it there.';
  if (platform === 'darwin' && arch !== 'arm64') {
    return 'Ratchet does not run on Intel Macs (no onnxruntime for them any more); use an Apple-silicon Mac or Linux.';
  }
  if (platform !== 'darwin' && platform !== 'linux') return `Ratchet runs on Linux and macOS, not on ${platform}.`;
  if (arch !== 'x64' && arch !== 'arm64') return `Ratchet runs on x64 and arm64, not on ${arch}.`;
  if (platform === 'linux' && glibc === null) {
    return 'Ratchet needs glibc, which this Linux (Alpine or another with musl) does not have; use Debian, Ubuntu or Fedora.';
  }
  if (platform === 'linux' && glibc !== null && isOlder(glibc, glibcOldest)) {
    return `Ratchet needs glibc ≥ ${glibcOldest}, this machine has ${glibc}; use a newer Linux (Debian 10, Ubuntu 20.04, RHEL 8 or later).`;
  }
  return refuseNode(node);
}

/**
 * @param {string} node
 * @returns {string | null}
 */
function refuseNode(node) {
  const [major = 0, minor = 0] = node.split('.').map(Number);
  const minorOldest = nodeVersions.get(major);
  if (minorOldest !== undefined && minor >= minorOldest) return null;
  return `Ratchet needs Node 20.19 or later, 22 or 24; this is Node ${node}.`;
}

/**
 * @param {string} version
 * @param {string} oldest
 */
function isOlder(version, oldest) {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  const [majorOldest = 0, minorOldest = 0] = oldest.split('.').map(Number);
  return major < majorOldest || (major === majorOldest && minor < minorOldest);
}

/** @returns {MachineFacts} */
export function readMachine() {
  return { platform: process.platform, arch: process.arch, node: process.versions.node, glibc: readGlibc() };
}

/** Ends the process with one line where Ratchet cannot run. */
export function requirePlatform() {
  const refusal = refusePlatform(readMachine());
  if (refusal === null) return;
  process.stderr.write(`${refusal}\n`);
  process.exit(1);
}

/** @returns {string | null} */
function readGlibc() {
  if (process.platform !== 'linux') return null;
  // Without this the report looks up the names of all network peers, which can take seconds.
  const report = /** @type {{ excludeNetwork?: boolean } | undefined} */ (process.report);
  if (report) report.excludeNetwork = true;
  const facts = /** @type {{ header?: { glibcVersionRuntime?: string } } | undefined} */ (process.report?.getReport());
  return facts?.header?.glibcVersionRuntime ?? null;
}
