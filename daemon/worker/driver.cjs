/* Run agents' code in this process, one order after another: the script that a persistent node starts with.
 *
 * `node driver.cjs CONTROL STATUS`. It needs Node 18 and nothing else. The descriptor CONTROL brings orders: a line
 * `run N LENGTH` and the path of a file of code, LENGTH bytes; and `stop N`. STATUS hears `ready PID` once; then of
 * each run `s` when its code begins, `left HEX` (JSON: what the event loop still waits for, and how many of each),
 * and `N STATUS` at its end. Code that node does not accept is answered by `refused HEX`, and nothing of it runs.
 *
 * Two threads. The hub reads orders, checks syntax and writes answers; the main thread runs the code, by the
 * inspector's evaluate: it alone lets `const` be declared again and awaits at the top level. Only another thread can
 * end `while (true) {}`, so it is the hub that stops code: it asks the main thread, and has it terminated where it
 * does not answer.
 */
"use strict";

const fs = require("node:fs");
const inspector = require("node:inspector");
const Module = require("node:module");
const net = require("node:net");
const path = require("node:path");
const util = require("node:util");
const { promiseHooks } = require("node:v8");
const vm = require("node:vm");
const { Writable } = require("node:stream");
const { Worker, isMainThread, parentPort, workerData } = require("node:worker_threads");

const MESSAGE_MAX = 4000; // characters of a refusal
const LINE_MAX = 400; // characters of a line of code that a refusal shows
const INTERRUPTED = 130; // what a shell reports for a program that SIGINT ended
const HALT_WAIT = 50; // milliseconds that the main thread gets to answer before its code is terminated
const IMPORT = "ɪmport"; // stands for `import` in `import(…)`, which evaluated code lacks; as long, so columns hold
const IMPORTS_MAX = 100; // of them in one run that are told from text that only looks like them
const IMPORT_HINT = "\nUse `const x = require('x')` or `const { x } = await import('x')`: this is not a module.";
// What the prompt has at hand without require; the others only warn that they are old.
const LIBRARIES = Module.builtinModules.filter((name) => !/^_|\/|:|^(sys|punycode|trace_events|wasi)$/.test(name));

/* ---- the main thread: the code's own ---- */

class Stream extends Writable {
  /* Standard output or error, written before write() returns: node's own loses what a pipe has not taken at exit. */
  constructor(fd) {
    super({ decodeStrings: true });
    this.fd = fd;
    this._type = "fs";
    this._isStdio = true;
  }

  _write(data, _encoding, done) {
    try {
      writeAll(this.fd, data);
      done();
    } catch (error) {
      done(error);
    }
  }
}

function writeAll(fd, data) {
  for (let at = 0; at < data.length; ) {
    try {
      at += fs.writeSync(fd, data, at);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1); // a child has made the pipe non-blocking
    }
  }
}

function main(control, status) {
  const { process } = globalThis; // the code may put something else there
  const own = [
    [control, "r"],
    [status, "w"],
  ].map(([fd, mode]) => {
    const opened = fs.openSync(`/proc/self/fd/${fd}`, mode); // node's are closed on exec, the ones given are not
    fs.closeSync(fd);
    return opened;
  });
  const kept = ["r", "w", "w"].map((mode, fd) => fs.openSync(`/proc/self/fd/${fd}`, mode)); // for code that closes them
  const flags = new Int32Array(new SharedArrayBuffer(4)); // [0]: the last run that was stopped
  const session = new inspector.Session();
  session.connect();
  const hub = new Worker(__filename, { workerData: { own, flags, pid: process.pid }, env: {}, execArgv: [] });
  const post = hub.postMessage.bind(hub);
  const { inspect } = util;
  const { then } = Promise.prototype;
  const box = {};
  let boxId;
  let current = 0; // the run that is going
  let before = {};
  let held; // its promise
  const unsettled = new Set(); // all of those
  let last; // the value that `_` has

  /** The object that the inspector describes. */
  function take({ objectId }) {
    session.post("Runtime.callFunctionOn", {
      objectId: boxId,
      functionDeclaration: "function (value) { this.value = value; }",
      arguments: [{ objectId }],
      silent: true,
    });
    const found = box.value;
    box.value = undefined;
    return found;
  }

  function execute(number, source) {
    current = number;
    repair();
    before = resources();
    if (Atomics.load(flags, 0) >= number) return finish(number, INTERRUPTED);
    process.exitCode = undefined;
    // The first promise is the run's own. It is held until it settles, also where the run is stopped: of one that
    // nothing can settle any more the inspector says so while garbage is collected, and newer nodes crash of that.
    held = undefined;
    const stop = promiseHooks.onInit((made) => (held ??= made));
    try {
      const asked = { expression: source, replMode: true, awaitPromise: true, silent: true, objectGroup: "run" };
      session.post("Runtime.evaluate", asked, (error, answer) => evaluated(number, error, answer));
    } finally {
      stop();
    }
    if (held) follow(number, held);
  }

  function follow(number, promise) {
    unsettled.add(promise);
    then.call(
      promise,
      ({ ".repl_result": value }) => {
        unsettled.delete(promise);
        settle(number, () => show(value));
      },
      (why) => {
        unsettled.delete(promise);
        settle(number, () => report(why));
      },
    );
  }

  /** What the inspector says where there is no promise that could: the code did not begin, or was terminated. */
  function evaluated(number, error, answer) {
    if (current !== number || process._exiting) return;
    if (error && /context/.test(error.message)) {
      // process.kill of this process, by a signal that did not end it, has node let go of its inspector
      writeAll(2, Buffer.from("the code broke what the interpreter needs (its inspector), so it ends\n"));
      process.reallyExit(1);
    } else if (error) {
      finish(number, INTERRUPTED);
    } else if (!held && answer.exceptionDetails) {
      settle(number, () => report(take(answer.exceptionDetails.exception)));
    }
  }

  function settle(number, tell) {
    if (current !== number) return;
    let result;
    try {
      result = tell();
    } catch (failed) {
      result = report(failed);
    }
    finish(number, result);
  }

  /** Print the value of a run, as the prompt does; the status it ends with. */
  function show(value) {
    if (value !== undefined) {
      last = value;
      process.stdout.write(`${inspect(value, { showProxy: true })}\n`);
    }
    return Number(process.exitCode ?? 0) & 0xff;
  }

  function finish(number, result) {
    current = 0;
    const left = {};
    for (const [name, count] of Object.entries(resources())) {
      if (count > (before[name] ?? 0)) left[name] = count - (before[name] ?? 0);
    }
    session.post("Runtime.releaseObjectGroup", { objectGroup: "run" });
    session.post("Runtime.discardConsoleEntries");
    post({ number, result, left });
  }

  /** Print what the code did not catch, as the prompt does; the status it ends with. */
  function report(error) {
    let text = "Uncaught, and it cannot be shown";
    try {
      const shown = inspect(error);
      const bare = util.types.isNativeError(error) && /^\[.*\]$/s.test(shown); // it has no stack
      text = `Uncaught ${bare ? shown.slice(1, -1) : shown}`;
    } catch {
      // its own inspect fails
    }
    try {
      process.stderr.write(`${text}\n`);
    } catch {
      writeAll(2, Buffer.from(`${text}\n`));
    }
    return 1;
  }

  function uncaught(error) {
    if (process.listenerCount("uncaughtException") > 1) return; // the code has a handler of its own
    report(error);
    if (current) finish(current, 1);
  }

  /** What the event loop waits for, by node's names for it. */
  function resources() {
    const found = {};
    for (const name of process.getActiveResourcesInfo()) found[name] = (found[name] ?? 0) + 1;
    return found;
  }

  /** Put back what code before this may have spoiled: descriptors, streams, the handler of what it does not catch. */
  const streams = {};
  function repair() {
    for (const [fd, mode] of ["r", "w", "w"].entries()) {
      try {
        fs.fstatSync(fd);
      } catch {
        fs.openSync(`/proc/self/fd/${kept[fd]}`, mode); // takes the lowest number that is free, this one
      }
    }
    for (const [name, fd] of [["stdout", 1], ["stderr", 2]]) {
      const now = streams[name];
      if (now && !now.destroyed && !now.writableEnded && process[name] === now) continue;
      if (now && process[name] !== now && process[name]?.writable) continue; // the code has put one in its place
      streams[name] = new Stream(fd);
      const get = () => streams[name];
      Object.defineProperty(process, name, { configurable: true, enumerable: true, get });
      console[`_${name}`] = streams[name];
    }
    if (!process.listeners("uncaughtException").includes(uncaught)) process.on("uncaughtException", uncaught);
  }

  /** A global that is made when it is used, and that code may declare or set. */
  function offer(name, get) {
    Object.defineProperty(globalThis, name, {
      configurable: true,
      get,
      set(value) {
        Object.defineProperty(globalThis, name, { configurable: true, enumerable: true, writable: true, value });
      },
    });
  }

  let place = {}; // where require and import look from: the folder the code is in
  function here() {
    let cwd = place.cwd ?? "/";
    try {
      cwd = process.cwd();
    } catch {
      // it was removed
    }
    if (cwd !== place.cwd) {
      const filename = path.join(cwd, "[run].cjs");
      const found = new Module(filename);
      found.filename = filename;
      found.paths = Module._nodeModulePaths(cwd);
      found._compile("module.exports = (what, how) => (how === undefined ? import(what) : import(what, how))", filename);
      place = { cwd, import: found.exports, require: Module.createRequire(filename) };
    }
    return place;
  }

  // Our frames, and what stands below them, are no part of the code's stack.
  Error.prepareStackTrace = (error, frames) => {
    const end = frames.findIndex((frame) => [__filename, "node:inspector"].includes(frame.getFileName()));
    let head = "Error";
    try {
      head = Error.prototype.toString.call(error);
      if (/^ERR_/.test(error.code)) head = head.replace(error.name, `${error.name} [${error.code}]`);
    } catch {
      // a getter of its own fails
    }
    return [head, ...(end < 0 ? frames : frames.slice(0, end))].join("\n    at ");
  };

  globalThis.ɪbox = box;
  session.post("Runtime.evaluate", { expression: "ɪbox" }, (_, answer) => (boxId = answer.result.objectId));
  delete globalThis.ɪbox;
  process.argv.length = 1;
  const module = new Module("[run]");
  const { exports } = module;
  process.mainModule = module; // so that `require.main === module` holds, as in a script
  for (const name of LIBRARIES) offer(name, () => here().require(`node:${name}`));
  offer("module", () => module);
  offer("exports", () => exports);
  offer("require", () => here().require);
  offer("_", () => last);
  Object.defineProperty(globalThis, IMPORT, { value: (what, how) => here().import(what, how) });
  repair();
  hub.on("exit", () => process.exit(0));
  hub.on("message", ({ op, number, source }) => {
    if (op === "run") execute(number, source);
    else if (op === "stop") finish(number, INTERRUPTED);
  });
}

/* ---- the hub ---- */

class Refused extends Error {}

function hub({ own: [control, status], flags, pid }) {
  const local = new inspector.Session();
  local.connect();
  local.on("Runtime.executionContextCreated", ({ params }) => (local.newest = params.context.id));
  local.post("Runtime.enable");
  let main = null; // a session on the main thread, while there is something to terminate: with one node exits loudly
  let going = 0; // the run that has no answer yet
  let answered; // resolves the wait for it
  let terminating = false;
  let terminated;
  let buffer = Buffer.alloc(0);

  const tell = (text) => writeAll(status, Buffer.from(text));
  const hex = (text) => Buffer.from(text).toString("hex");

  function take(order, rest) {
    const [op, number, length] = order.split(" ");
    if (op === "stop") {
      stop(Number(number));
      return rest;
    }
    if (rest.length < Number(length)) return null;
    begin(Number(number), rest.subarray(0, Number(length)));
    return rest.subarray(Number(length));
  }

  function begin(number, file) {
    let source;
    try {
      source = prepared(local, number, fs.readFileSync(file));
    } catch (error) {
      tell(`refused ${hex(error instanceof Refused ? error.message : String(error))}\n`);
      return;
    }
    going = number;
    tell("s\n");
    parentPort.postMessage({ op: "run", number, source });
  }

  /** End a run: by asking, where the main thread still listens, else by terminating what it does. */
  async function stop(number) {
    Atomics.store(flags, 0, number);
    let result = INTERRUPTED;
    while (going === number) {
      const done = new Promise((resolve) => (answered = resolve));
      parentPort.postMessage({ op: "stop", number });
      result = await within(done, INTERRUPTED);
      if (going === number) await terminate();
    }
    answered = undefined;
    while (terminating) {
      parentPort.postMessage({ op: "nothing" }); // what is to be terminated shall be this, not what comes next
      await within(terminated);
    }
    main?.disconnect();
    main = null;
    if (result !== undefined) tell(`${number} ${result}\n`);
  }

  async function terminate() {
    if (!terminating) {
      terminating = true;
      if (!main) {
        main = new inspector.Session();
        main.connectToMainThread();
      }
      terminated = new Promise((resolve) => {
        main.post("Runtime.terminateExecution", () => {
          terminating = false;
          resolve();
        });
      });
    }
    await within(terminated);
  }

  function within(promise, otherwise) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, HALT_WAIT, otherwise);
      promise.then((value) => {
        clearTimeout(timer);
        resolve(value);
      });
    });
  }

  parentPort.on("message", ({ number, result, left }) => {
    if (number !== going) return; // it has its answer
    going = 0;
    if (Object.keys(left).length) tell(`left ${hex(JSON.stringify(left))}\n`);
    if (answered) answered(result);
    else tell(`${number} ${result}\n`);
  });
  new net.Socket({ fd: control, readable: true, writable: false })
    .on("data", (data) => {
      buffer = Buffer.concat([buffer, data]);
      for (let end = buffer.indexOf(10); end >= 0; end = buffer.indexOf(10)) {
        const rest = take(buffer.toString("latin1", 0, end), buffer.subarray(end + 1));
        if (rest === null) break;
        buffer = rest;
      }
    })
    .on("close", () => process.exit());
  tell(`ready ${pid}\n`);
}

/** Code as the main thread evaluates it. Throws Refused for what node would not accept. */
function prepared(session, number, bytes) {
  const name = `run-${number}`;
  let source;
  try {
    source = new util.TextDecoder("utf-8", { fatal: true }).decode(bytes); // drops a byte order mark
  } catch {
    throw new Refused("SyntaxError: the code is not UTF-8");
  }
  source = source.replace(/^#!/, "//");
  const wrapped = `(${source.trim()}\n)`;
  if (/^\s*\{/.test(source) && !/;\s*$/.test(source) && !fault(session, wrapped)) {
    source = wrapped; // `{ a: 1 }` is a value at the prompt, not a block
  } else {
    const found = fault(session, source);
    if (found) throw new Refused(described(name, source, found));
  }
  return `${withImports(session, source)}\n//# sourceURL=${name}`;
}

/** What is wrong with code: {text, line, column}, counted from 0; or nothing. Nothing of it runs. */
function fault(session, source) {
  const found = (method, asked, before) => {
    let fault = null;
    session.post(method, asked, (error, answer) => {
      const details = answer?.exceptionDetails;
      if (error) fault = { text: error.message, line: 0, column: 0 };
      else if (details?.exception?.subtype === "error") {
        const { lineNumber: line, columnNumber: column, exception } = details;
        const text = exception.description.split("\n    at ")[0];
        fault = { text, line, column: line ? column : Math.max(0, column - before) };
      }
    });
    return fault;
  };
  const script = found("Runtime.compileScript", { expression: source, sourceURL: "", persistScript: false }, 0);
  if (!script || !/\bawait\b/.test(source)) return script;
  // With `await` at its top level it is no script. Evaluated as it will be, but in a context that is thrown away, and
  // behind a `throw`, so that not even its first statement runs.
  vm.createContext({});
  const before = `${/^\s*(["'])use strict\1/.test(source) ? '"use strict";' : ""}throw 0;`;
  const asked = { expression: before + source, contextId: session.newest, replMode: true, silent: true };
  return found("Runtime.evaluate", asked, before.length);
}

function described(name, source, { text, line, column }) {
  const shown = source.split("\n")[line] ?? "";
  const at = shown.length > LINE_MAX ? "" : `${shown}\n${" ".repeat(column)}^\n`;
  const hint = /import statement/.test(text) ? IMPORT_HINT : "";
  return `${name}:${line + 1}:${column + 1}\n${at}${text}${hint}`.slice(0, MESSAGE_MAX);
}

/** Code with IMPORT for the `import` of each `import(…)`. The parser says which are some, and not text or a name. */
function withImports(session, source) {
  let found = source;
  let count = 0;
  for (const { 0: word, index } of source.matchAll(/\bimport(?=\s*\()/g)) {
    const put = (text) => found.slice(0, index) + text + found.slice(index + word.length);
    count += 1;
    if (count > IMPORTS_MAX || (fault(session, put("1 1")) && !fault(session, put("(0)")))) found = put(IMPORT);
  }
  return found;
}

if (isMainThread) main(Number(process.argv[2]), Number(process.argv[3]));
else hub(workerData);
