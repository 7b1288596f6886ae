// libswitchagg.so: the functions of worker_lib/c/switchagg.h, as calls of worker_lib.c in an embedded Python.
//
// It uses the stable ABI and is not linked with a Python: the program is. The interpreter starts with the first session. It runs
// under the name of the Python in whose environment this library lies, so that it finds what is installed there. No exception
// leaves these functions.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <cstdarg>
#include <cstdlib>
#include <mutex>
#include <string>

#include "worker_lib/c/switchagg.h"

struct switchagg_session {
  long long handle;
};

namespace {

thread_local std::string message;
pid_t started_by = 0;  // the process that the interpreter is of
PyObject* call_function = nullptr;

switchagg_status fail(switchagg_status status, std::string text) {
  message = std::move(text);
  return status;
}

// The exception that is set, as "type: text".
std::string exception() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  std::string text = "unknown";
  PyObject* const shown = value ? PyUnicode_FromFormat("%R", value) : nullptr;
  if (shown) {
    if (const char* const utf8 = PyUnicode_AsUTF8AndSize(shown, nullptr)) text = utf8;
    Py_DECREF(shown);
  }
  PyErr_Clear();
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return text;
}

// "3.11", of the Python that the program is linked with.
std::string python_version() {
  const std::string all = Py_GetVersion();
  return all.substr(0, all.find('.', all.find('.') + 1));
}

bool is_program(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

// The path of the interpreter to start as: SWITCHAGG_PYTHON's, or that of the environment that this library lies in; or empty, for
// Python's own choice. A Python of another version would end the process, so it is refused; returns false.
bool find_python(std::string& path) {
  const std::string name = "python" + python_version();
  if (const char* const given = std::getenv("SWITCHAGG_PYTHON"); given && *given) {
    const std::string text = given;
    const size_t slash = text.rfind('/');
    path = (slash == std::string::npos ? std::string() : text.substr(0, slash + 1)) + name;
    if (slash != std::string::npos && is_program(text) && is_program(path)) return true;
    fail(SWITCHAGG_USAGE, "SWITCHAGG_PYTHON is " + text + "; accepted: the path of a Python " + python_version() +
                              ", with which this program is linked, with " + name + " beside it");
    return false;
  }
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&switchagg_connect), &info) || !info.dli_fname) return true;
  // .../lib/python3.X/site-packages/worker_lib/c/libswitchagg.so
  const std::string library = info.dli_fname;
  const size_t slash = library.rfind('/');
  const std::string here = (slash == std::string::npos ? "." : library.substr(0, slash)) + "/../../../../../bin/" + name;
  if (!is_program(here)) return true;
  // Python does not follow ".." through a folder that is a link, so without them; the last name stays, as it may be a link
  // out of a virtual environment.
  char folder[PATH_MAX];
  if (realpath(here.substr(0, here.rfind('/')).c_str(), folder)) path = std::string(folder) + "/" + name;
  return true;
}

// At exit: leaves all jobs, as the end of a Python program does.
void leave() {
  if (getpid() != started_by) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* const module = PyImport_ImportModule("atexit");
  PyObject* const done = module ? PyObject_CallMethod(module, "_run_exitfuncs", nullptr) : nullptr;
  if (!done) PyErr_Print();
  Py_XDECREF(done);
  Py_XDECREF(module);
  PyGILState_Release(state);
}

// Starts the interpreter, if there is none, and imports worker_lib.c; again after a failure.
switchagg_status start() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (call_function) return SWITCHAGG_OK;
  if (!Py_IsInitialized()) {
    std::string path;
    if (!find_python(path)) return SWITCHAGG_USAGE;
    if (!path.empty()) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // what replaces it is not in the stable ABI
      if (wchar_t* const name = Py_DecodeLocale(path.c_str(), nullptr)) Py_SetProgramName(name);  // kept: Python does not copy it
#pragma GCC diagnostic pop
    }
    Py_InitializeEx(0);  // signals stay the program's
    started_by = getpid();
    PyEval_SaveThread();
    std::atexit(leave);
  } else if (!started_by) {
    started_by = getpid();
  }
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* const module = PyImport_ImportModule("worker_lib.c");
  call_function = module ? PyObject_GetAttrString(module, "call") : nullptr;
  std::string trouble;
  if (!call_function) trouble = exception();
  Py_XDECREF(module);
  PyGILState_Release(state);
  if (trouble.empty()) return SWITCHAGG_OK;
  return fail(SWITCHAGG_OTHER, "Python " + python_version() + " cannot import worker_lib: " + trouble +
                                   ". Set SWITCHAGG_PYTHON to the Python in whose environment switchagg is installed.");
}

// Calls worker_lib.c.call(name, handle, ...); the rest as Py_BuildValue takes it, in parentheses.
switchagg_status call(const char* name, long long handle, long long* result, const char* format, ...) {
  if (!call_function) return fail(SWITCHAGG_USAGE, "there is no session: call switchagg_connect first");
  if (getpid() != started_by)
    return fail(SWITCHAGG_BROKEN, "sessions belong to process " + std::to_string(started_by) +
                                      "; a forked child can use none of them, nor connect");
  const PyGILState_STATE state = PyGILState_Ensure();
  va_list values;
  va_start(values, format);
  PyObject* const rest = Py_VaBuildValue(format, values);
  va_end(values);
  PyObject* const head = rest ? Py_BuildValue("(sL)", name, handle) : nullptr;
  PyObject* const all = head ? PySequence_Concat(head, rest) : nullptr;
  PyObject* const answer = all ? PyObject_CallObject(call_function, all) : nullptr;
  int status = SWITCHAGG_OTHER;
  const char* text = nullptr;
  long long number = 0;
  if (answer && PyArg_ParseTuple(answer, "isL", &status, &text, &number)) {
    if (status != SWITCHAGG_OK) message = text;
    if (result) *result = number;
  } else {
    status = SWITCHAGG_OTHER;
    message = exception();
  }
  Py_XDECREF(answer);
  Py_XDECREF(all);
  Py_XDECREF(head);
  Py_XDECREF(rest);
  PyGILState_Release(state);
  return static_cast<switchagg_status>(status);
}

// Makes a list of strings, for Py_BuildValue's "O&".
PyObject* list_of(void* given) {
  PyObject* const list = PyList_New(0);
  for (const char* const* each = static_cast<const char* const*>(given); list && each && *each; ++each) {
    PyObject* const text = PyUnicode_FromString(*each);
    if (!text || PyList_Append(list, text) != 0) {
      Py_XDECREF(text);
      Py_DECREF(list);
      return nullptr;
    }
    Py_DECREF(text);
  }
  return list;
}

unsigned long long address(const void* data) { return reinterpret_cast<uintptr_t>(data); }

long long handle_of(const switchagg_session* session) { return session ? session->handle : 0; }

int number(const switchagg_session* session, const char* name) {
  long long found = -1;
  return call(name, handle_of(session), &found, "()") == SWITCHAGG_OK ? static_cast<int>(found) : -1;
}

}  // namespace

extern "C" {

switchagg_status switchagg_connect(switchagg_session** session, const char* const* settings) {
  if (!session) return fail(SWITCHAGG_USAGE, "session is NULL; accepted: the address of a pointer");
  *session = nullptr;
  if (const switchagg_status status = start(); status != SWITCHAGG_OK) return status;
  long long handle = 0;
  const switchagg_status status = call("connect", 0, &handle, "(O&)", list_of, settings);
  if (status == SWITCHAGG_OK) *session = new switchagg_session{handle};
  return status;
}

int switchagg_rank(const switchagg_session* session) { return number(session, "rank"); }

int switchagg_world_size(const switchagg_session* session) { return number(session, "world_size"); }

switchagg_status switchagg_allreduce(switchagg_session* session, void* data, size_t count, const char* type, const char* op,
                                     const char* const* settings) {
  return call("allreduce", handle_of(session), nullptr, "(KKzzO&)", address(data), static_cast<unsigned long long>(count), type,
              op, list_of, settings);
}

switchagg_status switchagg_broadcast(switchagg_session* session, void* data, size_t bytes, int root) {
  return call("broadcast", handle_of(session), nullptr, "(KKi)", address(data), static_cast<unsigned long long>(bytes), root);
}

switchagg_status switchagg_allgather(switchagg_session* session, const void* data, size_t bytes, void* all) {
  return call("allgather", handle_of(session), nullptr, "(KKK)", address(data), static_cast<unsigned long long>(bytes),
              address(all));
}

switchagg_status switchagg_barrier(switchagg_session* session) { return call("barrier", handle_of(session), nullptr, "()"); }

switchagg_status switchagg_close(switchagg_session* session) {
  if (!session) return SWITCHAGG_OK;
  const switchagg_status status = call("close", session->handle, nullptr, "()");
  delete session;
  return status;
}

const char* switchagg_message(void) { return message.c_str(); }

}  // extern "C"
